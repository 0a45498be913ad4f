# SPDX-License-Identifier: Apache-2.0
# cmake -DBUILD=FOLDER -DLIBRARIES=lib -P installed_rpath.cmake: an installed program looks for
# libraries beside itself, as RPATH, wherever its folder is copied to.
set(prefix ${BUILD}/Testing/installed)
file(REMOVE_RECURSE ${prefix})
execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD} --prefix ${prefix}
                OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
file(READ_ELF ${prefix}/bin/paceline RPATH rpath RUNPATH runpath CAPTURE_ERROR error)
file(REMOVE_RECURSE ${prefix})
if(NOT "${rpath}" STREQUAL "$ORIGIN/../${LIBRARIES}" OR NOT "${runpath}" STREQUAL "")
  message(FATAL_ERROR "rpath '${rpath}', runpath '${runpath}' ${error}")
endif()
