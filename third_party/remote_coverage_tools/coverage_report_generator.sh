#!/bin/sh
# Stands where coverage tools would: coverage is not collected.
exit 0
