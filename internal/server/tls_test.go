package server

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
)

// A pemPair is a certificate, which is its own authority, and its key.
type pemPair struct{ cert, key []byte }

// newPair makes a pair for plants.example until a time.
func newPair(t *testing.T, until time.Time) pemPair {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "plants.example"},
		DNSNames: []string{"plants.example"}, NotBefore: until.Add(-48 * time.Hour), NotAfter: until, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pemPair{pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})}
}

// write writes the pair into two files of a folder. A file without content is removed.
func (p pemPair) write(t *testing.T, folder string) {
	t.Helper()
	for name, content := range map[string][]byte{"cert.pem": p.cert, "key.pem": p.key} {
		file := filepath.Join(folder, name)
		err := os.WriteFile(file, content, 0o600)
		if content == nil {
			err = os.Remove(file)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// load writes the pair, and returns it as a certificate.
func (p pemPair) load(t *testing.T, folder string) *Certificate {
	t.Helper()
	p.write(t, folder)
	c, err := LoadCertificate(filepath.Join(folder, "cert.pem"), filepath.Join(folder, "key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestTLSVersionsOfClients(t *testing.T) {
	t.Parallel()
	serve := func(t *testing.T) (running, *tls.Config) {
		pair := newPair(t, time.Now().Add(24*time.Hour))
		c := testConfig()
		c.Certificate = pair.load(t, t.TempDir())
		trust := &tls.Config{ServerName: "plants.example", RootCAs: x509.NewCertPool()}
		trust.RootCAs.AppendCertsFromPEM(pair.cert)
		return run(t, c), trust
	}
	for version, want := range map[uint16]string{tls.VersionTLS13: "HTTP/2.0", tls.VersionTLS12: "HTTP/1.1"} {
		synctest.Test(t, func(t *testing.T) {
			s, trust := serve(t)
			trust.MaxVersion = version
			client := &http.Transport{
				DialContext:       func(context.Context, string, string) (net.Conn, error) { return s.public.connect() },
				TLSClientConfig:   trust,
				ForceAttemptHTTP2: want == "HTTP/2.0",
			}
			defer client.CloseIdleConnections()
			deletion := del().http(t)
			deletion.URL.Scheme, deletion.URL.Host = "https", "plants.example"
			answer, err := client.RoundTrip(deletion)
			if err != nil || answer.StatusCode != http.StatusNoContent || answer.Proto != want || answer.TLS.Version != version {
				t.Errorf("%s: %v, %v; want 204 by %s", tls.VersionName(version), answer, err, want)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		s, trust := serve(t)
		trust.MinVersion, trust.MaxVersion = tls.VersionTLS10, tls.VersionTLS11
		if err := tls.Client(s.public.dial(t), trust).HandshakeContext(t.Context()); err == nil {
			t.Error("a client connected with TLS 1.1, want 1.2 at least")
		}
		// One connection of HTTP/2 can't hold the memory of hundreds of requests.
		trust.MaxVersion, trust.NextProtos = 0, []string{"h2"}
		conn := tls.Client(s.public.dial(t), trust)
		if _, err := io.WriteString(conn, http2.ClientPreface+"\x00\x00\x00\x04\x00\x00\x00\x00\x00"); err != nil {
			t.Fatal(err)
		}
		frame, err := http2.NewFramer(conn, conn).ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := frame.(*http2.SettingsFrame).Value(http2.SettingMaxConcurrentStreams); got != 100 {
			t.Errorf("the server allows %d requests at a time on a connection, want 100", got)
		}
		if a := send(t, s.public.dial(t), request{method: "GET", target: "/docs"}); a.status != http.StatusBadRequest {
			t.Errorf("plain HTTP: %d, want 400", a.status)
		}
		if a := send(t, s.admin.dial(t), request{method: "GET", target: "/livez"}); a.status != http.StatusOK {
			t.Errorf("plain HTTP by an operator: %d, want 200", a.status)
		}
	})
}

// Files change one after the other. Each new connection gets a whole pair that is valid, and each
// problem is logged once.
func TestCertificateIsReplaced(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		until := time.Now().Add(24 * time.Hour)
		first, second, stray := newPair(t, until), newPair(t, until), newPair(t, until)
		expired, early := newPair(t, time.Now().Add(-time.Hour)), newPair(t, time.Now().Add(72*time.Hour))
		folder := t.TempDir()
		c := first.load(t, folder)
		var log bytes.Buffer
		c.config(slog.New(slog.NewTextHandler(&log, nil)))
		for _, step := range []struct {
			name   string
			after  time.Duration
			pair   pemPair
			logged string // empty: nothing
			serves pemPair
		}{
			{"the same", 0, first, "", first},
			{"another key", 0, pemPair{first.cert, stray.key}, " are not a certificate and its key: tls: private key does not match public key", first},
			{"a new pair", 0, second, "was replaced", second},
			{"another key again", 0, pemPair{second.cert, stray.key}, "was not replaced", second},
			{"another certificate", 0, pemPair{first.cert, second.key}, "", second}, // the same problem
			{"the pair that is served", 0, second, "", second},
			{"no PEM", 0, pemPair{[]byte("nothing"), second.key}, " are not a certificate and its key: tls: failed to find any PEM data in certificate input", second},
			{"no certificate", 0, pemPair{nil, second.key}, "the certificate for TLS can't be read: open " + folder + "/cert.pem: no such file or directory", second},
			{"no key", 0, pemPair{second.cert, nil}, "the key for TLS can't be read: open " + folder + "/key.pem: no such file or directory", second},
			{"an expired pair", 0, expired, ": renew it", second},
			{"a pair of the future", 0, early, " is not valid before 2000-01-02T00:00:00Z", second},
			{"good again", 0, second, "", second},
			{"a tenth of its time left", 20 * time.Hour, second, "was not renewed", second},
			{"expired", 9 * time.Hour, second, "", second},
		} {
			time.Sleep(step.after)
			step.pair.write(t, folder)
			log.Reset()
			var pair *tls.Certificate
			for range 3 {
				time.Sleep(reloadEvery)
				pair, _ = c.get(nil)
			}
			if block, _ := pem.Decode(step.serves.cert); !bytes.Equal(pair.Certificate[0], block.Bytes) {
				t.Errorf("%s: another certificate is served than it should be", step.name)
			}
			want := map[bool]int{true: 1}[step.logged != ""]
			if got := strings.Count(log.String(), "\n"); got != want || !strings.Contains(log.String(), step.logged) {
				t.Errorf("%s: the log has %q, want %d line with %q", step.name, log.String(), want, step.logged)
			}
		}
	})
}
