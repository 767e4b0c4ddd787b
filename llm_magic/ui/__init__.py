"""What a person sees in a notebook.

The only package that imports IPython, ipywidgets, anywidget, matplotlib.
"""
