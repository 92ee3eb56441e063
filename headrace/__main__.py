from headrace.tools.main import run

run()
