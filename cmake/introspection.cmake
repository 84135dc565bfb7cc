# nf12._C: pybind11 over the C functions that libnf12.so exports. Sees no torch header.
if(NOT TARGET nf12)
  message(FATAL_ERROR "NF12_BUILD_PYTHON needs NF12_BUILD_TORCH")
endif()
if(NOT Python_Development.Module_FOUND)
  message(FATAL_ERROR "nf12: the headers of ${Python_EXECUTABLE} are missing (python3-dev)")
endif()
# Not `-m pybind11 --cmakedir`: that quotes a path with spaces for a shell.
execute_process(COMMAND ${Python_EXECUTABLE} -c "import pybind11; print(pybind11.get_cmake_dir())"
                OUTPUT_VARIABLE pybind11_path OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(pybind11_path)
  set(pybind11_DIR ${pybind11_path})
endif()
find_package(pybind11 CONFIG REQUIRED)
pybind11_add_module(_C MODULE NO_EXTRAS csrc/python/module.cpp)
target_link_libraries(_C PRIVATE nf12)
set_target_properties(_C PROPERTIES INSTALL_RPATH "$ORIGIN/lib" BUILD_WITH_INSTALL_RPATH ON)
install(TARGETS _C LIBRARY DESTINATION .)
