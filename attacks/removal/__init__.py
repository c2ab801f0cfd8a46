"""Removal of an owner's mark from a stolen graph model: pure functions, a model in and a model out.

None of them knows the key, its sets or its date. What they leave is measured with `fedsim.watermark`.
"""
