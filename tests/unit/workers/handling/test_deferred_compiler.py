"""torchvision is imported without torch's compiler, which is there once it is used."""

import os
import subprocess
import sys
import textwrap


def run(code):
    """Runs the code in a process of its own, because this one may have the compiler already."""
    prelude = "import sys\nfrom workers.handling.handlers import CompilerDeferred\n"
    words = [sys.executable, "-c", prelude + textwrap.dedent(code)]
    path = os.pathsep.join(filter(None, sys.path))  # with the package `ts`
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(words, env=environment, capture_output=True, text=True, check=False)


def test_torchvision_loads_no_compiler_until_it_asks_for_it():
    done = run(
        """
        sys.meta_path.insert(0, CompilerDeferred)
        from torchvision.ops import roi_align
        from torchvision.ops.roi_align import is_compile_supported
        assert "torch._dynamo" not in sys.modules
        assert "torch._dynamo.utils" not in sys.modules
        found = is_compile_supported("cpu")
        import torch._dynamo.utils
        assert found == torch._dynamo.utils.is_compile_supported("cpu")
        """
    )
    assert done.returncode == 0, done.stderr


def test_torchvision_gets_the_compiler_where_it_is_loaded_already():
    done = run(
        """
        sys.meta_path.insert(0, CompilerDeferred)
        import torch._dynamo.utils
        from torchvision.ops.roi_align import is_compile_supported
        assert is_compile_supported is torch._dynamo.utils.is_compile_supported
        """
    )
    assert done.returncode == 0, done.stderr
