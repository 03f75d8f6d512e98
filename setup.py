"""What pyproject.toml cannot say: tools/ and configs/ travel in the wheel under names of their own.

They are the package ``momentum_transfer_tools`` and the folder ``momentum_transfer/configs`` there, because ``tools``
and ``configs`` in site-packages would be everybody's. Everything else is in pyproject.toml.
"""

from setuptools import find_packages, setup

ROOMS = find_packages(include=[f"{room}{inside}" for room in ("momentum_transfer", "pretrain", "transfer", "lowshot")
                               for inside in ("", ".*")])  # fmt: skip

TOOLS = ["momentum_transfer_tools"]
TOOLS += [f"{TOOLS[0]}.benchmarks", f"{TOOLS[0]}.benchmarks.evaluators", f"{TOOLS[0]}.benchmarks.gpu_parts"]
TOOLS += [f"{TOOLS[0]}.studies"]

setup(
    packages=[*ROOMS, "momentum_transfer.configs", *TOOLS],
    package_dir={"momentum_transfer.configs": "configs", "momentum_transfer_tools": "tools"},
    package_data={
        "momentum_transfer": ["py.typed", "**/*.j2", "**/*.css"],
        "momentum_transfer.configs": ["README.md", "**/*.yaml"],
    },
)
