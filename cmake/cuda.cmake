# Decides whether the GPU backend is built, and sets FUSEGRAD_WITH_CUDA.
#
# The backend is the folders autograd/cuda, ops/cuda and optim/cuda. AUTO builds it where there are a CUDA compiler and a
# toolkit of version 13 or newer, ON builds it or fails, OFF does not look. CMAKE_CUDA_ARCHITECTURES is respected; unset,
# it is 90.
set(FUSEGRAD_WITH_CUDA OFF)
if(NOT FUSEGRAD_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "fusegrad: FUSEGRAD_CUDA must be AUTO, ON or OFF, got \"${FUSEGRAD_CUDA}\"")
endif()
if(FUSEGRAD_CUDA STREQUAL "OFF")
  message(STATUS "fusegrad: CPU only, because FUSEGRAD_CUDA=${FUSEGRAD_CUDA}")
  return()
endif()

set(missing "")
if(NOT EXISTS "${PROJECT_SOURCE_DIR}/autograd/cuda/CMakeLists.txt" OR
   NOT EXISTS "${PROJECT_SOURCE_DIR}/ops/cuda/CMakeLists.txt")
  set(missing "this version of fusegrad has no GPU backend")
else()
  include(CheckLanguage)
  check_language(CUDA)
  if(NOT CMAKE_CUDA_COMPILER)
    set(missing "no CUDA compiler was found; put nvcc in PATH or set CMAKE_CUDA_COMPILER")
  else()
    find_package(CUDAToolkit QUIET)
    if(NOT CUDAToolkit_FOUND OR CUDAToolkit_VERSION VERSION_LESS 13)
      set(missing "the CUDA toolkit, version 13 or newer, was not found")
    endif()
  endif()
endif()
if(missing)
  if(FUSEGRAD_CUDA STREQUAL "ON")
    message(FATAL_ERROR "fusegrad: FUSEGRAD_CUDA=ON, but ${missing}")
  endif()
  message(STATUS "fusegrad: CPU only, because ${missing}")
  return()
endif()

if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 90)
endif()
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
set(FUSEGRAD_WITH_CUDA ON)
message(STATUS "fusegrad: CPU and CUDA ${CUDAToolkit_VERSION} for ${CMAKE_CUDA_ARCHITECTURES}")

# Flags and libraries of the GPU backend. The runtime is linked statically; cuBLASLt, which is large, is the machine's.
function(fusegrad_add_cuda target)
  list(JOIN CMAKE_CUDA_ARCHITECTURES ", " architectures)
  target_compile_definitions(${target} PRIVATE
    FUSEGRAD_WITH_CUDA=1
    FUSEGRAD_CUDA_ARCHITECTURES="${architectures}")
  # CMake 3.25.1 knows no CUDA_STANDARD 20. Kernels call constexpr functions that the host shares. As on the host, the
  # compiler forms no fused multiply-adds of its own.
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20;--expt-relaxed-constexpr;-fmad=false;-Xcompiler=-ffp-contract=off>
    # Error messages name a place in the source tree, not on the machine that built it.
    $<$<COMPILE_LANGUAGE:CXX>:-fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=>
    $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=>)
  target_link_libraries(${target} PRIVATE CUDA::cudart_static CUDA::cublasLt)
endfunction()
