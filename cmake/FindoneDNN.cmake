# Finds oneDNN: oneDNN_FOUND, oneDNN_VERSION and the target oneDNN::oneDNN.
#
# Not by oneDNN's own package file, because Debian's looks for OpenCL too and ends the configuration where that is
# missing; only oneDNN's GPU part needs it. A oneDNN whose threads cannot be forbidden (built for TBB or SYCL) counts as
# not found.
find_path(FUSEGRAD_ONEDNN_INCLUDE_DIR oneapi/dnnl/dnnl.h)
find_library(FUSEGRAD_ONEDNN_LIBRARY dnnl)
mark_as_advanced(FUSEGRAD_ONEDNN_INCLUDE_DIR FUSEGRAD_ONEDNN_LIBRARY)

set(oneDNN_runtime_ok FALSE)
if(FUSEGRAD_ONEDNN_INCLUDE_DIR)
  set(numbers "")
  file(STRINGS "${FUSEGRAD_ONEDNN_INCLUDE_DIR}/oneapi/dnnl/dnnl_version.h" lines
       REGEX "^#define DNNL_VERSION_(MAJOR|MINOR|PATCH) +[0-9]+")
  foreach(line IN LISTS lines)
    string(REGEX MATCH "[0-9]+$" number "${line}")
    list(APPEND numbers "${number}")
  endforeach()
  list(JOIN numbers "." oneDNN_VERSION)
  file(STRINGS "${FUSEGRAD_ONEDNN_INCLUDE_DIR}/oneapi/dnnl/dnnl_config.h" lines
       REGEX "^#define DNNL_CPU_THREADING_RUNTIME DNNL_RUNTIME_(OMP|SEQ|THREADPOOL)$")
  if(lines)
    set(oneDNN_runtime_ok TRUE)
  endif()
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(oneDNN
  REQUIRED_VARS FUSEGRAD_ONEDNN_LIBRARY FUSEGRAD_ONEDNN_INCLUDE_DIR oneDNN_runtime_ok
  VERSION_VAR oneDNN_VERSION)
if(oneDNN_FOUND AND NOT TARGET oneDNN::oneDNN)
  add_library(oneDNN::oneDNN UNKNOWN IMPORTED)
  set_target_properties(oneDNN::oneDNN PROPERTIES
    IMPORTED_LOCATION "${FUSEGRAD_ONEDNN_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${FUSEGRAD_ONEDNN_INCLUDE_DIR}")
endif()
