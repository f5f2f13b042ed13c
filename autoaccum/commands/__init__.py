"""The commands, a file each: options in, text out, no logic of their own. A home of click.

Heavy imports wait until a command runs: `autoaccum --help` loads click and nothing else.

options.py  what they share: variables of the environment for every option, and printing the answer
"""
