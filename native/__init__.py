"""All C++ of the project, the one header that defines matching, their build and the loader."""
