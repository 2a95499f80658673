def setup(app):
    return {"version": "1"}
