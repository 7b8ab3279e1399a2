"""The routes of the server.

Each file except `about` has one route, and the code that reads the request and computes the answer.
"""
