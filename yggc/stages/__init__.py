"""The stages of a build. Each is one function from frozen inputs to a frozen output;
`yggc.pipeline` lists them.
"""
