"""Output that follows a grammar: what may be asked for, how it is checked, compiled and matched.

`base` has the protocol, `backends` names who implements it, `schema` decides about JSON Schema keywords,
`store` compiles off the step loop and keeps what was compiled, `checker` tries a grammar in a process of
its own. Knows no request, no step and no dialect.
"""
