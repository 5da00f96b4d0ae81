"""The serving layer of KDA/MLA hybrid models, run for real on a CPU.

Importing this package loads neither torch nor streamlit; import the subsystem you need,
for example ``from k3core.kda import kda_recurrent``.
"""

__version__ = "0.1.0"
