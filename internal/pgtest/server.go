package pgtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/log"
	"github.com/testcontainers/testcontainers-go/modules/postgres"

	"plantstore/internal/localpg"
)

const (
	defaultImage = "postgres:18-alpine"
	pullTimeout  = 2 * time.Minute

	// Tests run side by side, each with pools of its own.
	maxConnections = "300"
)

// A Server is the PostgreSQL that the tests use.
type Server struct {
	// URL is that of a superuser in a database for maintenance.
	URL string

	source  string
	version string
	stop    func() error
	// admin makes and drops databases. To begin a session takes longer than that.
	admin *pgxpool.Pool
}

// StartServer returns the PostgreSQL that the environment asks for, to be ended
// with Close:
//
//   - PLANTSTORE_TEST_POSTGRES=container or =local: that source and no other.
//   - TEST_DATABASE_URL: a server that runs already, as the URL of a superuser. It
//     has to be one for tests: roles named as the service's get new passwords.
//   - Otherwise a container of the image PLANTSTORE_TEST_POSTGRES_IMAGE, or
//     postgres:18-alpine, where a Docker engine answers and has the image or can
//     pull it; otherwise the PostgreSQL installed on this machine.
//
// PLANTSTORE_TEST_POSTGRES_VERSION=17 refuses a server of another version.
//
// The error tells what to do about it.
func StartServer(ctx context.Context, getenv func(string) string) (*Server, error) {
	image := cmp.Or(getenv("PLANTSTORE_TEST_POSTGRES_IMAGE"), defaultImage)
	var s *Server
	var err error
	switch source := getenv("PLANTSTORE_TEST_POSTGRES"); {
	case source == "container":
		s, err = startContainer(ctx, image)
	case source == "local":
		s, err = startLocal(ctx)
	case source != "":
		return nil, fmt.Errorf("PLANTSTORE_TEST_POSTGRES is %q, want container, local or nothing", source)
	case getenv("TEST_DATABASE_URL") != "":
		s = &Server{URL: getenv("TEST_DATABASE_URL"), source: "TEST_DATABASE_URL", stop: func() error { return nil }}
	default:
		s, err = startAny(ctx, image)
	}
	if err != nil {
		return nil, err
	}
	if err := s.inspect(ctx, getenv("PLANTSTORE_TEST_POSTGRES_VERSION")); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", s.source, err), s.stop())
	}
	if s.admin, err = pgxpool.New(ctx, s.URL); err != nil {
		return nil, errors.Join(err, s.stop())
	}
	return s, nil
}

// String tells where the server comes from, and its version.
func (s *Server) String() string { return s.source + ", PostgreSQL " + s.version }

// Close ends the server, with all of its data, unless it ran already.
func (s *Server) Close() error {
	s.admin.Close()
	return s.stop()
}

func startAny(ctx context.Context, image string) (*Server, error) {
	s, containerErr := startContainer(ctx, image)
	if containerErr == nil {
		return s, nil
	}
	s, localErr := startLocal(ctx)
	if localErr == nil {
		return s, nil
	}
	return nil, fmt.Errorf("no PostgreSQL for the tests: start Docker, install PostgreSQL (apt-get install postgresql), "+
		"or set TEST_DATABASE_URL to the URL of a superuser: %w", errors.Join(containerErr, localErr))
}

func startLocal(ctx context.Context) (*Server, error) {
	s, err := localpg.Start(ctx, localpg.Options{
		Settings: map[string]string{"fsync": "off", "max_connections": maxConnections},
	})
	if err != nil {
		return nil, fmt.Errorf("local binaries: %w", err)
	}
	return &Server{
		URL:    s.URL("postgres", "postgres"),
		source: "local binaries " + s.Programs(),
		stop:   s.Close,
	}, nil
}

func startContainer(ctx context.Context, image string) (*Server, error) {
	log.SetDefault(log.NewNoopLogger()) // it would write the first line of the tests' output
	if err := configureTestcontainers(ctx); err != nil {
		return nil, fmt.Errorf("docker: %w", err)
	}
	docker, err := testcontainers.NewDockerProvider()
	if err != nil {
		return nil, fmt.Errorf("docker: %w", err)
	}
	defer docker.Close()
	if err := pullIfAbsent(ctx, docker, image); err != nil {
		return nil, err
	}

	container, err := postgres.Run(ctx, image, postgres.BasicWaitStrategies(),
		testcontainers.WithTmpfs(map[string]string{"/var/lib/postgresql": ""}), // as in useMemory of the command run
		testcontainers.WithCmd("postgres", "-c", "fsync=off", "-c", "max_connections="+maxConnections))
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
	return &Server{URL: address, source: "container " + image, stop: stop}, nil
}

func pullIfAbsent(ctx context.Context, docker *testcontainers.DockerProvider, image string) error {
	if _, err := docker.Client().ImageInspect(ctx, image); err == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, pullTimeout)
	defer cancel()
	if err := docker.PullImage(ctx, image); err != nil {
		return fmt.Errorf("pull image %s: %w", image, err)
	}
	return nil
}

// configureTestcontainers sets what testcontainers reads from the environment,
// once, and can't find out by itself on a machine without an image registry.
func configureTestcontainers(ctx context.Context) error {
	set := func(name, value string) error {
		if os.Getenv(name) != "" {
			return nil
		}
		return os.Setenv(name, value)
	}
	// Its janitor container removes what a killed test process leaves, but
	// without the janitor's image nothing would start.
	docker, err := client.New(client.FromEnv)
	if err != nil {
		return err
	}
	defer docker.Close()
	//lint:ignore SA1019 there is no other public name for it
	if _, err := docker.ImageInspect(ctx, testcontainers.ReaperDefaultImage); err != nil {
		if err := set("TESTCONTAINERS_RYUK_DISABLED", "true"); err != nil {
			return err
		}
	}
	// In a container, it takes the engine for one outside of it. Where the
	// engine's bridge is an interface of ours, its ports are, too.
	if _, err := net.InterfaceByName("docker0"); err == nil {
		return set("TESTCONTAINERS_HOST_OVERRIDE", "127.0.0.1")
	}
	return nil
}

// inspect finds the version out, and whether the server is fit for the tests:
// the version has to be major, unless that is empty.
func (s *Server) inspect(ctx context.Context, major string) error {
	u, err := url.Parse(s.URL)
	if err != nil || !strings.HasPrefix(u.Scheme, "postgres") {
		return errors.New("want a URL, as in postgres://user:password@host:5432/database") // the URL may hold a password
	}
	conn, err := pgx.Connect(ctx, s.URL)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var superuser bool
	err = conn.QueryRow(ctx, `SELECT split_part(current_setting('server_version'), ' ', 1),
			(SELECT rolsuper FROM pg_roles WHERE rolname = current_user)`).Scan(&s.version, &superuser)
	if err != nil {
		return fmt.Errorf("ask for the version: %w", err)
	}
	if !superuser {
		return errors.New("want the URL of a superuser")
	}
	if got, _, _ := strings.Cut(s.version, "."); major != "" && got != major {
		return fmt.Errorf("PLANTSTORE_TEST_POSTGRES_VERSION is %s, and this is PostgreSQL %s", major, s.version)
	}
	return nil
}

// databaseURL returns the server's URL for another database, and another role
// unless that is nil.
func (s *Server) databaseURL(role *url.Userinfo, database string) string {
	u, err := url.Parse(s.URL)
	if err != nil {
		panic(err) // inspect has parsed it
	}
	u.Path = "/" + database
	query := u.Query()
	for _, parameter := range []string{"dbname", "database"} {
		query.Del(parameter)
	}
	if role != nil {
		u.User = role
		query.Del("user")
		query.Del("password")
	}
	if !query.Has("connect_timeout") {
		query.Set("connect_timeout", "60") // what is tested can wait on a busy machine, too
	}
	u.RawQuery = strings.ReplaceAll(query.Encode(), "+", "%20") // libpq takes no plus for a blank
	return u.String()
}
