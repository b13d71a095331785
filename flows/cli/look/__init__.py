"""Commands that show something and change nothing: status, logs, history, diff, explain, report, open."""
