"""The session service that workers register with: who they are, what they say, what they should do."""
