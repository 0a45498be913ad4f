# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` puts where. With PACELINE_BUNDLE the folder holds the libraries that the
# programs need besides the system's C and C++ ones, so that it runs wherever it is copied to.
include(GNUInstallDirs)
option(PACELINE_BUNDLE "Install the needed libraries and the GPU's tests beside the program" OFF)

# paceline_install(target): an executable. It looks for libraries beside itself first; as RPATH, not
# RUNPATH, so that the libraries' own needs are found there too.
function(paceline_install target)
  set_target_properties(${target} PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
  target_link_options(${target} PRIVATE LINKER:--disable-new-dtags)
  if(PACELINE_BUNDLE)
    install(TARGETS ${target} RUNTIME_DEPENDENCY_SET paceline_needs RUNTIME)
    set_property(GLOBAL APPEND PROPERTY PACELINE_INSTALLED ${target})
  else()
    install(TARGETS ${target} RUNTIME)
  endif()
endfunction()

# After all paceline_install().
function(paceline_install_needs)
  if(NOT PACELINE_BUNDLE)
    return()
  endif()
  # What every glibc system with a C++ library has, and what CUDA's own folders or driver bring.
  install(RUNTIME_DEPENDENCY_SET paceline_needs
          PRE_EXCLUDE_REGEXES
            "^ld-linux" "^lib(c|m|dl|rt|pthread|resolv|util)\\.so" "^libstdc\\+\\+\\.so"
            "^libgcc_s\\.so" "^lib(cuda|nvidia|cublas|cudnn|nccl|nvrtc|nvJitLink)"
          LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  get_property(targets GLOBAL PROPERTY PACELINE_INSTALLED)
  if(PACELINE_HAVE_CUDA)
    list(APPEND targets paceline_cuda)
  endif()
  add_custom_target(bundle DEPENDS ${targets})
endfunction()
