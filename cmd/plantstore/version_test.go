package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"plantstore/internal/migrate"
	"plantstore/internal/readme"
)

func TestVersionCommand(t *testing.T) {
	t.Parallel()
	out, _, code := command(t, "version")
	flag, stderr, flagCode := command(t, "--version")
	if code != 0 || flagCode != 0 || flag != out || stderr != "" || !strings.HasPrefix(out, "plantstore "+version+"\ncommit     unknown\ngo         go1.") {
		t.Errorf("got version: %d, %q; --version: %d, %q, %q; want 0 and the same", code, out, flagCode, flag, stderr)
	}
}

// All files that name the version name that of the program.
func TestVersionIsTheSameEverywhere(t *testing.T) {
	t.Parallel()
	for file, pattern := range map[string]string{
		"README.md":              `(?m)^\*\*Status:\*\* version (\S+)\. `,
		"deploy/CHANGELOG.md":    `(?m)^## (\S+)`,
		"deploy/Dockerfile":      `image\.version="(\S+)"`,
		"deploy/docs/install.md": `-xzf plantstore-(\S+)-linux-amd64\.tar\.gz`,
		"docker-compose.yml":     `(?m)^  image: plantstore:\$\{PLANTSTORE_TAG:-(\S+)\}`,
		"deploy/kubernetes/overlay/kustomization.yaml": `(?m)^    newTag: "(\S+)"`,
	} {
		found := regexp.MustCompile(pattern).FindStringSubmatch(readme.Read(t, file))
		if found == nil {
			t.Errorf("%s: found no version, by %s", file, pattern)
		} else if found[1] != version {
			t.Errorf("%s: got version %s, want %s as in version.go", file, found[1], version)
		}
	}
}

// A release freezes its migrations, and leaves a database that later versions upgrade.
func TestReleaseHasFrozenMigrationsAndADump(t *testing.T) {
	t.Parallel()
	if strings.HasSuffix(version, "-dev") {
		return
	}
	frozen := readme.Read(t, "migrations/SHA256SUMS")
	for _, m := range migrate.All() {
		if !strings.Contains(frozen, "  "+m.Name+"\n") {
			t.Errorf("migrations/SHA256SUMS lacks %s: add it with the release", m.Name)
		}
	}
	if _, err := os.Stat("testdata/database-" + version + ".sql"); err != nil {
		t.Errorf("%v: testdata/dump writes it", err)
	}
}
