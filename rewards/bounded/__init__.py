"""Functions over untrusted texts that can take unlimited time. They run in a child process with limits on time and memory."""
