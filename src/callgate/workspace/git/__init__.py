"""What we know of git: ignore files, protected files of a repository, submodules."""
