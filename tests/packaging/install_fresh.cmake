# cmake -DBINARY=<build tree> -DPREFIX=<folder> -DCONFIG=<configuration> -P install_fresh.cmake
# Installs into an emptied folder, so that nothing of an earlier installation can stand in for what is missing.
file(REMOVE_RECURSE "${PREFIX}")
execute_process(COMMAND "${CMAKE_COMMAND}" --install "${BINARY}" --prefix "${PREFIX}" --config "${CONFIG}"
                COMMAND_ERROR_IS_FATAL ANY)
