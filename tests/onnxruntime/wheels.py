# SPDX-License-Identifier: Apache-2.0
"""Finds a Python that has onnxruntime and onnx: this one, or the one in the environment created by scripts/setup
--with-dev, which ORT_PYTHON names. Import it first."""

import os
import sys

try:
    import onnx
    import onnxruntime
except ImportError as missing:
    python = os.environ.get("ORT_PYTHON", "")
    if os.path.exists(python) and "ORT_TRIED" not in os.environ:
        os.environ["ORT_TRIED"] = "1"
        os.execv(python, [python, *sys.argv])
    print(f"skipped: {missing}: scripts/setup --with-dev installs it")
    sys.exit(77)
