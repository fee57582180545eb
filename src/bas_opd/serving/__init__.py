"""Clients of models behind HTTP endpoints: a judge, a served model, a served teacher."""
