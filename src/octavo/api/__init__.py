"""The HTTP side: requests in, text out. Parses, renders, streams; knows no scheduler and no model.

This file imports nothing, because the template worker (`octavo.api.template_worker`) passes through it.
"""
