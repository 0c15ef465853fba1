#!/usr/bin/env python3
"""Includes run one way in the tree given as argument; and the checker sees each kind of violation in a tree made for it."""
import os
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
import include_direction

ROOT = sys.argv.pop(1) if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")

GOOD = {
    "framework/include/facet/abi/types.h": "#include <cstdint>\n",
    "framework/include/facet/abi/linear.h": '#include "facet/abi/types.h"\n',
    "framework/include/facet/sdk/linear.h": '#include "facet/abi/linear.h"\n#include <vector>\n',
    "framework/include/facet/base/error.h": "#include <fmt/format.h>\n",
    "framework/src/plugin/registry.cpp": '#include "facet/sdk/linear.h"\n#include <boost/dll.hpp>\n#include "plugin/own.h"\n',
    "framework/src/plugin/own.h": "",
    "plugins/attention/flash.cpp": '#include "tiles.h"\n#include "facet/sdk/linear.h"\n#include <immintrin.h>\n',
    "plugins/attention/tiles.h": "#include <cuda_runtime.h>\n",
    "plugins/kvcache/ring.h": "",
    "plugins/gptq/quantizer/include/facet/quantizer/rtn.h": "",
    "plugins/gptq/quantizer/rtn.cpp": '#include "facet/quantizer/rtn.h"\n',
    "models/gemma4/model.cpp": '#include "facet/abi/linear.h"\n#include "facet/base/error.h"\n',
    "models/gemma4/include/gemma4/model.h": "",
    "apps/facet/main.cpp": '#include "gemma4/model.h"\n#include <CLI/CLI.hpp>\n',
}

# file, its one forbidden include, and a word of the reason
BAD = [
    ("framework/include/facet/abi/x.h", '"facet/sdk/linear.h"', "abi stands alone"),
    ("framework/include/facet/abi/x.h", "<fmt/format.h>", "nothing else"),
    ("framework/include/facet/sdk/x.h", '"facet/base/error.h"', "sdk stands on abi"),
    ("framework/include/facet/sdk/x.h", "<fmt/format.h>", "nothing else"),
    ("framework/include/facet/base/x.h", "<cuda_runtime.h>", "nothing else"),
    ("framework/include/facet/base/x.h", "<boost/dll.hpp>", "nothing else"),
    ("framework/include/facet/base/x.h", "<toml++/toml.h>", "nothing else"),
    ("framework/include/facet/base/x.h", "<spdlog/spdlog.h>", "nothing else"),
    ("framework/include/facet/base/x.h", "  <tbb/task_arena.h>", "nothing else"),
    ("framework/include/facet/base/x.h", '"../../../src/plugin/own.h"', "only public headers"),
    ("framework/src/plugin/x.cpp", '"../../../plugins/kvcache/ring.h"', "knows no plugin"),
    ("framework/src/plugin/x.cpp", '"plugins/kvcache/ring.h"', "knows no plugin"),
    ("framework/src/plugin/x.cpp", '"gemma4/model.h"', "no model"),
    ("framework/backend/cpu/x.cpp", '"apps/facet/main.h"', "no program"),
    ("plugins/attention/x.cpp", '"facet/base/error.h"', "facet/abi and facet/sdk only"),
    ("plugins/attention/x.cpp", '"facet/plugin/registry.h"', "facet/abi and facet/sdk only"),
    ("plugins/attention/x.cpp", '"../kvcache/ring.h"', "than its own"),
    ("plugins/attention/cpu/x.cpp", '"../../kvcache/ring.h"', "than its own"),
    ("plugins/attention/x.cpp", '"../../framework/src/plugin/own.h"', "than its own"),
    ("models/gemma4/x.cpp", '"../../plugins/kvcache/ring.h"', "no plugin"),
    ("models/gemma4/x.cpp", '"plugins/absent.h"', "no plugin"),
    ("apps/facet/x.cpp", '"../../plugins/kvcache/ring.h"', "includes none"),
]


def write_tree(root, files):
    for name, text in files.items():
        path = os.path.join(root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as out:
            out.write(text)


class IncludeDirection(unittest.TestCase):
    def test_this_tree(self):
        found, count = include_direction.violations(ROOT)
        self.assertGreater(count, 50, f"too few source files under {ROOT}: is it the repository?")
        self.assertEqual(found, [], "\n" + "\n".join(found))

    def test_a_good_tree_is_accepted(self):
        with tempfile.TemporaryDirectory() as root:
            write_tree(root, GOOD)
            found, count = include_direction.violations(root)
            self.assertEqual(found, [])
            self.assertEqual(count, len(GOOD))

    def test_each_violation_is_found(self):
        for file, name, reason in BAD:
            with self.subTest(file=file, include=name), tempfile.TemporaryDirectory() as root:
                write_tree(root, {**GOOD, file: f"#pragma once\n#include {name}\n"})
                found, _ = include_direction.violations(root)
                self.assertEqual(len(found), 1, found)
                self.assertTrue(found[0].startswith(file + ": "), found)
                self.assertIn(reason, found[0])


if __name__ == "__main__":
    unittest.main(verbosity=1)
