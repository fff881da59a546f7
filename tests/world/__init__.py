"""The world around the program as tests make it: real servers, fakes only for time and ids."""
