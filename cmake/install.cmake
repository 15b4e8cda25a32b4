# The installed package: library, public headers and find_package(fusegrad).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/fusegrad")
install(TARGETS fusegrad EXPORT fusegrad-targets
  ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}"
  LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}"
  RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}"
  FILE_SET HEADERS DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(EXPORT fusegrad-targets NAMESPACE fusegrad:: DESTINATION "${package_dir}")

get_target_property(FUSEGRAD_LIBRARY_TYPE fusegrad TYPE)
configure_package_config_file(cmake/fusegrad-config.cmake.in "${PROJECT_BINARY_DIR}/cmake/fusegrad-config.cmake"
  INSTALL_DESTINATION "${package_dir}" NO_SET_AND_CHECK_MACRO)
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file("${PROJECT_BINARY_DIR}/cmake/fusegrad-config-version.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/cmake/fusegrad-config.cmake"
              "${PROJECT_BINARY_DIR}/cmake/fusegrad-config-version.cmake" DESTINATION "${package_dir}")
if(FUSEGRAD_WITH_ONEDNN)
  install(FILES cmake/FindoneDNN.cmake DESTINATION "${package_dir}")
  configure_file(cmake/FindoneDNN.cmake "${PROJECT_BINARY_DIR}/cmake/FindoneDNN.cmake" COPYONLY)
endif()
install(FILES LICENSE DESTINATION "${CMAKE_INSTALL_DOCDIR}")

# The build tree is a package too: find_package(fusegrad PATHS <build>/cmake).
export(EXPORT fusegrad-targets NAMESPACE fusegrad:: FILE "${PROJECT_BINARY_DIR}/cmake/fusegrad-targets.cmake")
