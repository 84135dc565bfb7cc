# libnf12.so: one file for every torch from 2.11 on, since it sees only torch's stable C functions.
if(NOT NF12_TORCH_DIR)
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c
            "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
    OUTPUT_VARIABLE NF12_TORCH_DIR OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET
    RESULT_VARIABLE no_torch)
  if(no_torch)
    message(FATAL_ERROR "nf12: ${Python_EXECUTABLE} has no torch; install torch >= 2.11 first")
  endif()
endif()
set(torch_include ${NF12_TORCH_DIR}/include)
if(NOT EXISTS ${torch_include}/torch/headeronly/version.h)
  message(FATAL_ERROR "nf12: ${NF12_TORCH_DIR} has no stable C headers; nf12 needs torch >= 2.11")
endif()
file(STRINGS ${torch_include}/torch/headeronly/version.h torch_version REGEX "define TORCH_VERSION_M")
string(REGEX REPLACE ".*MAJOR ([0-9]+).*MINOR ([0-9]+).*" "\\1.\\2" torch_version "${torch_version}")
if(torch_version VERSION_LESS 2.11)
  message(FATAL_ERROR "nf12: torch ${torch_version} at ${NF12_TORCH_DIR}; nf12 needs torch >= 2.11")
endif()

# What was built, from what: tests compare the hash with the sources they see.
file(GLOB_RECURSE hashed_sources CONFIGURE_DEPENDS csrc/*.hpp csrc/*.cpp csrc/*.h)
set(build_info ${CMAKE_BINARY_DIR}/generated/nf12_build_info.hpp)
add_custom_command(
  OUTPUT ${build_info}
  COMMAND ${CMAKE_COMMAND} -DROOT=${CMAKE_SOURCE_DIR} -DOUTPUT=${build_info}
          -DVERSION=${PROJECT_VERSION}
          "-DCOMPILER=${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}"
          -P ${CMAKE_SOURCE_DIR}/cmake/build_info.cmake
  DEPENDS ${hashed_sources} cmake/build_info.cmake pyproject.toml
  VERBATIM)

file(GLOB torch_sources CONFIGURE_DEPENDS csrc/torch/*.cpp)
add_library(nf12 SHARED ${torch_sources} ${build_info} $<TARGET_OBJECTS:nf12_cpu>
                        $<TARGET_OBJECTS:nf12_gpu>)
target_include_directories(nf12 PRIVATE ${CMAKE_BINARY_DIR}/generated)
target_include_directories(nf12 SYSTEM PRIVATE ${torch_include})
# Without the target, a build against a newer torch asks for symbols that 2.11 lacks.
target_compile_definitions(nf12 PRIVATE TORCH_TARGET_VERSION=0x020b000000000000)
target_link_options(nf12 PRIVATE -Wl,-z,defs -Wl,--gc-sections
                    -Wl,--version-script=${CMAKE_SOURCE_DIR}/cmake/exports.map)
set_target_properties(nf12 PROPERTIES LINK_DEPENDS ${CMAKE_SOURCE_DIR}/cmake/exports.map)
# torch's library stays in NEEDED even where the linker thinks it could go; no rpath leads to it,
# since `import torch` has loaded it before.
target_link_libraries(nf12 PRIVATE -Wl,--no-as-needed ${NF12_TORCH_DIR}/lib/libtorch_cpu.so
                                   -Wl,--as-needed ${CMAKE_DL_LIBS})
set_target_properties(nf12 PROPERTIES SKIP_BUILD_RPATH ON)
install(TARGETS nf12 LIBRARY DESTINATION lib)
# nf12/backend.py tells from it whether another build would have kernels for a GPU.
install(FILES csrc/arch/targets.json DESTINATION lib)
