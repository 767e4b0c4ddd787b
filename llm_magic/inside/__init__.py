"""Looking into a model: activations, lenses, attention, steering, causes. Numbers only.

How it is drawn is the matter of `ui.views.inside`; what is computed in the model, of
`providers.interior`.
"""
