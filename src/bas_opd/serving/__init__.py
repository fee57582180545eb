"""Clients of HTTP endpoints."""
