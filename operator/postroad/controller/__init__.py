"""The operator: pure builders of the wanted children, thin handlers, conditions as status."""
