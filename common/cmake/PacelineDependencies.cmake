# SPDX-License-Identifier: Apache-2.0
# Libraries that Paceline builds on. Debian 12's package names are in experiments/setup.sh.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(ZLIB REQUIRED)
find_package(CLI11 REQUIRED)
find_package(GTest REQUIRED)
include(GoogleTest)

# Header-only, without a usable CMake config on Debian 12.
function(paceline_header_library target header)
  find_path(${target}_INCLUDE ${header} REQUIRED)
  add_library(${target} INTERFACE IMPORTED GLOBAL)
  target_include_directories(${target} SYSTEM INTERFACE ${${target}_INCLUDE})
endfunction()
paceline_header_library(paceline_boost boost/asio.hpp)
paceline_header_library(paceline_toml toml++/toml.h)

# oneDNN's config wants OpenCL; ZeroMQ's needs pkg-config: both are found by hand.
find_path(DNNL_INCLUDE oneapi/dnnl/dnnl.hpp REQUIRED)
find_library(DNNL_LIBRARY dnnl REQUIRED)
add_library(paceline_dnnl INTERFACE IMPORTED GLOBAL)
target_include_directories(paceline_dnnl SYSTEM INTERFACE ${DNNL_INCLUDE})
target_link_libraries(paceline_dnnl INTERFACE ${DNNL_LIBRARY})
find_package(OpenMP REQUIRED COMPONENTS CXX)

find_path(ZMQ_INCLUDE zmq.hpp REQUIRED)
find_library(ZMQ_LIBRARY zmq REQUIRED)
add_library(paceline_zmq INTERFACE IMPORTED GLOBAL)
target_include_directories(paceline_zmq SYSTEM INTERFACE ${ZMQ_INCLUDE})
target_link_libraries(paceline_zmq INTERFACE ${ZMQ_LIBRARY})
