package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/log"
	"github.com/testcontainers/testcontainers-go/modules/postgres"

	"plantstore/internal/pgtest"
)

// startContainer runs an image, which is pulled where it is absent, for at most two minutes.
func startContainer(ctx context.Context, image string) (*server, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	log.SetDefault(log.NewNoopLogger()) // testcontainers would write the first line of the tests' output
	docker, err := client.New(client.FromEnv)
	if err != nil {
		return nil, fmt.Errorf("docker: %w", err)
	}
	defer docker.Close()
	if err := configureTestcontainers(ctx, docker); err != nil {
		return nil, fmt.Errorf("docker: %w", err)
	}
	command := []string{"postgres"}
	for name, value := range pgtest.Settings() {
		command = append(command, "-c", name+"="+value)
	}
	container, err := postgres.Run(ctx, image, postgres.BasicWaitStrategies(), testcontainers.WithCmd(command...),
		testcontainers.WithTmpfs(map[string]string{"/var/lib/postgresql": ""})) // in memory: see memory
	stop := func() error {
		// No grace: nobody needs the data.
		return testcontainers.TerminateContainer(container, testcontainers.StopTimeout(0))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("container %s: %w", image, err), stop())
	}
	address, err := container.ConnectionString(ctx, "sslmode=disable")
	if err != nil {
		return nil, errors.Join(fmt.Errorf("container %s: %w", image, err), stop())
	}
	return &server{url: address, source: "container " + image, stop: stop}, nil
}

// configureTestcontainers sets variables for testcontainers that it can't find out by itself on
// a machine without an image registry.
func configureTestcontainers(ctx context.Context, docker *client.Client) error {
	set := func(name, value string) error {
		if os.Getenv(name) != "" {
			return nil
		}
		return os.Setenv(name, value)
	}
	// Without its image, the janitor container would prevent every start.
	//lint:ignore SA1019 there is no other public name for it
	if _, err := docker.ImageInspect(ctx, testcontainers.ReaperDefaultImage); err != nil {
		if err := set("TESTCONTAINERS_RYUK_DISABLED", "true"); err != nil {
			return err
		}
	}
	// If the engine's bridge is an interface of this machine, published ports are on 127.0.0.1,
	// even if this is a container itself.
	if _, err := net.InterfaceByName("docker0"); err == nil {
		return set("TESTCONTAINERS_HOST_OVERRIDE", "127.0.0.1")
	}
	return nil
}
