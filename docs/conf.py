"""Sphinx configuration, without network: ``python -m sphinx -W --keep-going -b html docs docs/_build``."""

import os
import sys
import sysconfig
from pathlib import Path

from sphinx.application import Sphinx

import fathomless
from fathomless.families.registry import references

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))
sys.path.append(str(HERE.parent / "tests"))  # toy_family, the example of a page

# notebooks call the command `fathomless`: it must be the one of this environment
os.environ["PATH"] = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])
os.environ["MATPLOTLIBRC"] = str(HERE / "matplotlibrc")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")

project = "fathomless"
author = "The fathomless developers"
copyright = "The fathomless developers. MIT licence"
version = release = fathomless.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "matplotlib.sphinxext.plot_directive",
    "myst_nb",
    "command_line",
    "docstrings",
    "example",
    "gallery",
    "mathml",
    "reference",
    "spaces",
    "terms",
]
exclude_patterns = ["_build", "_ext", "jupyter_execute"]
templates_path: list[str] = []
default_role = "code"  # in docstrings, `n` is a name
nitpicky = True  # names of fathomless must resolve; those of other packages have no pages here
nitpick_ignore_regex = [
    ("py:.*", r"(?!fathomless\.).*"),
    ("py:class", r".*\._\w+"),
    ("py:obj", r".*\.[A-Z]"),
]  # the last pattern matches type variables
highlight_language = "text"
pygments_style = "friendly"
pygments_dark_style = "github-dark"
add_module_names = False
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings have types and shapes
autoclass_content = "class"
autodoc_default_options = {"members": True, "show-inheritance": True}
napoleon_google_docstring = False
napoleon_custom_sections = [("Attributes", "params_style")]
napoleon_use_rtype = False
napoleon_preprocess_types = False

plot_include_source = True
plot_pre_code = ""
plot_html_show_source_link = False
plot_html_show_formats = False
plot_formats = ["svg"]

nb_execution_mode = "force"
nb_execution_in_temp = True
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_merge_streams = True
nb_code_prompt_show = "Show the code"
nb_code_prompt_hide = "Hide the code"
myst_enable_extensions = ["deflist", "dollarmath", "substitution"]
myst_substitutions = {"bibtex": "```bibtex\n" + "\n\n".join(r.bibtex() for r in references()) + "\n```"}

html_theme = "furo"
html_title = "fathomless"
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#1c6f61", "color-brand-content": "#1c6f61"},
    "dark_css_variables": {"color-brand-primary": "#63bdaa", "color-brand-content": "#63bdaa"},
}
html_static_path = ["_static"]
html_css_files = ["style.css"]
html_logo = "_static/logo.svg"
html_favicon = "_static/logo.svg"
html_copy_source = html_show_sourcelink = False
html_show_sphinx = False

html_math_renderer = "mathml"


def setup(app: Sphinx) -> None:
    """Set the folder for the pages that notebooks write."""
    app.outdir.mkdir(parents=True, exist_ok=True)
    os.environ["FATHOMLESS_PAGES"] = str(app.outdir)
