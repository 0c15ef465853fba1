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
        FILES_MATCHING PATTERN "*.h" PATTERN "*.inc")

# find_package(facet) gives facet::sdk. Headers only, so any processor may use the same package.
set_target_properties(facet_sdk PROPERTIES EXPORT_NAME sdk)
install(TARGETS facet_sdk EXPORT facet_targets)
install(EXPORT facet_targets NAMESPACE facet:: FILE facet-targets.cmake DESTINATION lib/cmake/facet)
configure_package_config_file(cmake/facet-config.cmake.in ${PROJECT_BINARY_DIR}/facet-config.cmake
                              INSTALL_DESTINATION lib/cmake/facet)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/facet-config-version.cmake
                                 COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
install(FILES ${PROJECT_BINARY_DIR}/facet-config.cmake ${PROJECT_BINARY_DIR}/facet-config-version.cmake
        DESTINATION lib/cmake/facet)

# The configurations name their model relative to themselves, so the embedded model keeps its place beside them.
install(DIRECTORY configs DESTINATION share/facet FILES_MATCHING PATTERN "*.toml")
install(DIRECTORY models/gemma4/checkpoints/docs-22m-w4a16-g128 DESTINATION share/facet/models/gemma4/checkpoints OPTIONAL)
install(FILES README.md DESTINATION share/facet OPTIONAL)
