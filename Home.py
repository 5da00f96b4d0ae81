"""Home."""

from k3core import ui

page = ui.frame("home")
page.controls(ui.MODEL, ui.TP)
