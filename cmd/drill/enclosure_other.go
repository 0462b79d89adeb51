//go:build !linux

package main

import (
	"context"
	"errors"
	"io"
)

var errNotLinux = errors.New("the drill's machines are namespaces of Linux: run it there")

func enclose(context.Context) error { return errNotLinux }

func beFirst(context.Context, []string, io.Writer, io.Writer) (int, error) { return 0, errNotLinux }
