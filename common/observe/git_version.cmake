# SPDX-License-Identifier: Apache-2.0
# Writes OUTPUT with the source's git describe; touches the file only when that changed.
# Run as: cmake -DSOURCE=dir -DVERSION=0.1.0 -DOUTPUT=file -P git_version.cmake
execute_process(COMMAND git -C ${SOURCE} describe --always --dirty --tags
                OUTPUT_VARIABLE described OUTPUT_STRIP_TRAILING_WHITESPACE
                ERROR_QUIET RESULT_VARIABLE failed)
if(failed OR NOT described MATCHES "^[A-Za-z0-9._/+-]+$")
  set(described ${VERSION})
endif()
set(text "#pragma once\n#define PACELINE_GIT_VERSION \"${described}\"\n")
set(old "")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} old)
endif()
if(NOT text STREQUAL old)
  file(WRITE ${OUTPUT} ${text})
endif()
