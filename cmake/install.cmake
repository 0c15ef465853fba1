# Install rules. The tree is relocatable: the program finds its plugins by its own place (bin/../lib/facet/plugins), so the
# layout below the prefix is fixed and does not follow the distribution's library folder.
include(CMakePackageConfigHelpers)

get_property(facet_plugins GLOBAL PROPERTY FACET_PLUGINS)

set_target_properties(facet PROPERTIES INSTALL_RPATH "$ORIGIN/../lib")
set_target_properties(${facet_plugins} PROPERTIES INSTALL_RPATH "$ORIGIN")
install(TARGETS facet RUNTIME DESTINATION bin)
install(TARGETS ${facet_plugins} LIBRARY DESTINATION lib/facet/plugins)
if(TARGET facet_cuda)
  install(TARGETS facet_cuda LIBRARY DESTINATION lib/facet)
endif()

# What a plugin author sees: the contract and its helpers, nothing of the core.
install(DIRECTORY framework/include/facet/abi framework/include/facet/sdk DESTINATION include/facet
        FILES_MATCHING PATTERN "*.h" PATTERN "*.inc" PATTERN "*.cuh")

# find_package(facet) gives facet::sdk. Headers only, so any processor may use the same package.
set_target_properties(facet_sdk PROPERTIES EXPORT_NAME sdk)
install(TARGETS facet_sdk EXPORT facet_targets)
install(EXPORT facet_targets NAMESPACE facet:: FILE facet-targets.cmake DESTINATION lib/cmake/facet)
# Written into a folder of their own: in the root of the build, find_package would take the build for an installation.
set(facet_package_dir ${PROJECT_BINARY_DIR}/package)
# Folders configured before they moved still hold them.
file(REMOVE ${PROJECT_BINARY_DIR}/facet-config.cmake ${PROJECT_BINARY_DIR}/facet-config-version.cmake)
configure_package_config_file(cmake/facet-config.cmake.in ${facet_package_dir}/facet-config.cmake
                              INSTALL_DESTINATION lib/cmake/facet)
write_basic_package_version_file(${facet_package_dir}/facet-config-version.cmake
                                 COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
install(FILES ${facet_package_dir}/facet-config.cmake ${facet_package_dir}/facet-config-version.cmake
        DESTINATION lib/cmake/facet)

# facet_install_kept(FILE ...): each file below share/facet, in the folder that it has in the source tree. Files are listed
# and not globbed, so that what someone tried out in configs/ is not installed.
function(facet_install_kept)
  foreach(file IN LISTS ARGN)
    get_filename_component(folder ${file} DIRECTORY)
    install(FILES ${file} DESTINATION share/facet/${folder})
  endforeach()
endfunction()

facet_install_kept(
  README.md
  docs/comparison.md docs/json.md docs/choosing-cuda-plugins.md docs/adr/README.md docs/adr/0001-stamp-in-the-file.md
  docs/adr/0002-schedulers-ask.md docs/adr/0003-supports-has-no-cost.md docs/adr/0004-embedding-in-place.md
  docs/adr/0005-device-backends.md docs/adr/0006-steps-that-run-ahead.md docs/adr/0007-plans-without-the-device.md
  framework/README.md plugins/quant_gptq/cpu/README.md plugins/quant_gptq/cuda/README.md plugins/attention/cuda/README.md
  plugins/quant_gptq/quantizer/README.md
  examples/scheduler_shortest_first/CMakeLists.txt examples/scheduler_shortest_first/README.md
  examples/scheduler_shortest_first/shortest_first.cpp
  bench/results/cpu-attention.json bench/results/cpu-end-to-end.json bench/results/cpu-linear.json
  bench/results/cpu-tokenizer.json bench/results/cuda-attention.json bench/results/cuda-gemma4-12b-synthetic.json
  bench/results/cuda-linear.json bench/results/cuda-quantize-12b.json bench/results/cuda-quantize.json
  configs/default.toml configs/docs-5m.toml configs/gemma4-12b-synthetic.toml configs/mixed-layers.toml
  configs/requests.jsonl
  configs/caches/int8.toml configs/caches/paged.toml configs/caches/ring.toml configs/caches/static.toml
  configs/cuda/docs-22m.toml configs/cuda/gemma4-12b-synthetic.toml
  configs/lab/01-reference.toml configs/lab/02-batch.toml configs/lab/03-fused.toml configs/lab/04-rows.toml
  configs/lab/05-ring.toml configs/lab/06-final.toml configs/lab/requests.jsonl
  configs/kernels/attention-reference.toml configs/kernels/dense.toml configs/kernels/dequant_gemm.toml
  configs/kernels/reference.toml configs/kernels/split-by-rows.toml configs/kernels/w4a16.toml configs/kernels/w4a8.toml
  configs/schedulers/continuous.toml configs/schedulers/requests.jsonl configs/schedulers/static.toml)
# The configurations name their model relative to themselves, so the embedded models keep their places beside them.
facet_install_kept(models/gemma4/checkpoints/README.md)
foreach(checkpoint IN ITEMS docs-5m docs-22m-w4a16-g128)
  foreach(file IN ITEMS config.json generation_config.json model.safetensors tokenizer.json)
    facet_install_kept(models/gemma4/checkpoints/${checkpoint}/${file})
  endforeach()
endforeach()
