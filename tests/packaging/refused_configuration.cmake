# cmake -DSOURCE=<folder> -DBINARY=<folder> -DOPTIONS=<-D...;...> -DEXPECTED=<regex> -P refused_configuration.cmake
# Configures with options that must be refused, and checks the message.
file(REMOVE_RECURSE "${BINARY}")
execute_process(COMMAND "${CMAKE_COMMAND}" -S "${SOURCE}" -B "${BINARY}" ${OPTIONS}
                RESULT_VARIABLE status OUTPUT_QUIET ERROR_VARIABLE message)
if(status EQUAL 0)
  message(FATAL_ERROR "${OPTIONS} was accepted")
endif()
string(REGEX REPLACE "[ \n]+" " " message "${message}")  # CMake wraps its lines
if(NOT message MATCHES "${EXPECTED}")
  message(FATAL_ERROR "${OPTIONS}: expected a message with\n  ${EXPECTED}\ngot\n  ${message}")
endif()
