package main

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"plantstore/internal/pgtest"
)

// replica starts a service as a process of its own, which can be killed.
func replica(t *testing.T, database pgtest.Database) (cmd *exec.Cmd, public string) {
	t.Helper()
	p := &process{log: new(syncBuffer)}
	cmd = exec.CommandContext(t.Context(), os.Args[0], "serve", "--database-url="+database.App,
		"--addr=127.0.0.1:0", "--admin-addr=127.0.0.1:0", "--drain-delay=0s")
	cmd.Env = append(os.Environ(), runMain+"=1")
	cmd.Stderr = p.log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	public, admin := p.addresses(t)
	waitReady(t, admin, http.StatusOK)
	return cmd, public
}

// A script deletes one plant after the other with a budget, from many clients, through
// two services, of which one is killed while they do: exactly so many are gone. Others
// do not notice.
func TestABudgetStopsARunawayScript(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	owner := pgtest.Connect(t, database.Owner)
	const most, plants = 100, 400
	execute(t, owner, fmt.Sprintf(`INSERT INTO plants (id, name) SELECT i, 'Boston fern' FROM generate_series(1, %d) i`, 2*plants))
	script, shop := createToken(t, database.Owner, "script", "--budget=100/1h"), createToken(t, database.Owner, "shop")
	victim, killed := replica(t, database)
	_, stays := replica(t, database)
	var next, gone, over, others atomic.Int64
	try := func(service, token string, id int64) (code int, after string, err error) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodDelete, fmt.Sprintf("%s/plants/%d", service, id), nil)
		if err != nil {
			return 0, "", err
		}
		request.Header.Set("Authorization", "Bearer "+token)
		request.Header.Set("Idempotency-Key", "k")
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			return 0, "", err
		}
		answer.Body.Close()
		return answer.StatusCode, answer.Header.Get("Retry-After"), nil
	}
	var clients sync.WaitGroup
	for client := range 64 {
		clients.Go(func() {
			service := []string{killed, stays}[client%2]
			for id := next.Add(1); id <= plants; id = next.Add(1) {
				for deadline := time.Now().Add(patience); ; {
					code, after, err := try(service, script, id)
					seconds, _ := strconv.Atoi(after)
					switch {
					case err == nil && code == http.StatusNoContent:
						gone.Add(1)
					case err == nil && code == http.StatusTooManyRequests && 0 < seconds && seconds <= 3600:
						over.Add(1)
					case time.Now().Before(deadline) && (err != nil || code >= 500):
						service = stays // with the same key
						continue
					default:
						t.Errorf("DELETE of plant %d: %d, Retry-After %s, %v; want 204 or 429 for an hour at the most", id, code, after, err)
					}
					break
				}
				if code, _, err := try(stays, shop, plants+id); err != nil || code != http.StatusNoContent {
					t.Errorf("DELETE of plant %d by another principal: %d, %v; want 204", plants+id, code, err)
				}
				others.Add(1)
			}
		})
	}
	if !eventually(func() bool { return gone.Load() >= most/4 }) {
		t.Errorf("%d plants deleted", gone.Load())
	}
	if err := victim.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	clients.Wait()
	if gone.Load() != most || over.Load() != plants-most || others.Load() != plants {
		t.Errorf("%d plants deleted and %d refused, and %d by another; want %d, %d, %d", gone.Load(), over.Load(), others.Load(), most, plants-most, plants)
	}
	var ledger, left int
	if err := owner.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM plant_deletions WHERE deleted_by = 'script' AND plant IS NOT NULL),
		(SELECT count(*) FROM plants)`).Scan(&ledger, &left); err != nil || ledger != most || left != plants-most {
		t.Errorf("%d in the ledger, %d left, %v; want %d, %d", ledger, left, err, most, plants-most)
	}
	expect := expecting(t, database.Owner)
	expect(0, `PRINCIPAL.*script +valid .* 100/1h, 100 used\nshop +valid .* -\n`, "", "token", "list")
}

func TestBudgetCommands(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	expect := expecting(t, database.Owner)
	for budget, why := range map[string]string{
		"-1/1h":       `the deletion budget -1/1h is for -1 plants: it must be for 1 to 1000000000`,
		"0/1h":        `the deletion budget 0/1h is for 0 plants: it must be for 1 to 1000000000`,
		"5/8d":        `the deletion budget 5/8d has a period of 8d, longer than deletions are sure to stay in the ledger: it must be 7d at the most`,
		"5/168h0m1s":  `the deletion budget 5/168h0m1s has a period of 168h0m1s, longer .*`,
		"5/-1h":       `the deletion budget 5/-1h has a period of -1h: it must be 1s at the least`,
		"5/1ms":       `the deletion budget 5/1ms has a period of 1ms: it must be 1s at the least`,
		"many/1h":     `"many/1h" is no deletion budget: want one as 500/1h or 10000/7d`,
		"500":         `"500" is no deletion budget: .*`,
		"500/":        `"500/" is no deletion budget: .*`,
		"500/hour":    `"500/hour" is no deletion budget: .*`,
		"9e99/1h":     `"9e99/1h" is no deletion budget: .*`,
		"5/99999999d": `"5/99999999d" is no deletion budget: .*`,
	} {
		expect(2, "", "plantstore: --budget: "+why+"\n", "token", "create", "shop", "--budget="+budget)
		if !strings.HasPrefix(budget, "-") { // which would be a flag
			expect(2, "", `plantstore: \[<budget>\]: `+why+"\n", "token", "budget", "shop", budget)
		}
	}
	const unset = `"" is no deletion budget: want one as 500/1h or 10000/7d\n`
	expect(2, "", `plantstore: --budget: `+unset, "token", "create", "shop", "--budget=")
	expect(2, "", `plantstore: \[<budget>\]: `+unset, "token", "budget", "shop", "")
	expect(1, "", `plantstore: there is no principal "shop": .*\n`, "token", "budget", "shop", "500/1h")
	expect(0, `pst_.*\n`, `.*\n`, "token", "create", "shop")
	expect(1, "", `plantstore: "shop" has no deletion budget that could be lifted\n`, "token", "budget", "shop", "--lift=30m")
	expect(2, "", `plantstore: token budget: a principal without a budget has none that could be lifted: leave out --lift\n`, "token", "budget", "shop", "none", "--lift=5m")
	expect(2, "", `plantstore: token budget: say what the deletion budget of "shop" is to be, as 500/1h or none, or lift it, as --lift 30m\n`, "token", "budget", "shop")
	expect(0, `the deletion budget of "shop" is 500/1h30m\n`, "", "token", "budget", "shop", "500/90m")
	expect(0, `.* 500/1h30m, 0 used\n`, "", "token", "list")
	expect(0, `the deletion budget of "shop" is 20/7d\nthe deletion budget of "shop" is lifted for 30m0s\n`, "", "token", "budget", "shop", "20/168h", "--lift=30m")
	expect(0, `.* 20/7d, lifted until 20\S+Z\n`, "", "token", "list")
	expect(0, `\[.*"budget": \{\n +"most": 20,\n +"period_seconds": 604800,\n +"used": 0,\n +"lifted_until": "20.*`, "", "token", "list", "--json")
	expect(0, `the deletion budget of "shop" counts\n`, "", "token", "budget", "shop", "--lift=0s")
	expect(0, `.* 20/7d, 0 used\n`, "", "token", "list")
	expect(0, `.*`, "", "token", "budget", "shop", "--lift=30m")
	expect(0, `the deletion budget of "shop" is 30/7d\n`, "", "token", "budget", "shop", "30/7d")
	expect(0, `.* 30/7d, 0 used\n`, "", "token", "list") // what was lifted is not what was set
	expect(0, `"shop" has no deletion budget any more\n`, "", "token", "budget", "shop", "none")
	expect(0, `the deletion budget of "oidc:alice" is lifted for 30m0s\n`, "", "token", "budget", "oidc:alice", "--lift=30m")
	expect(0, `.* -\noidc:alice +JWT +- +- +- +- +default, lifted until 20\S+Z\n`, "", "token", "list")
	expect(0, `\[.*"name": "oidc:alice",\n +"budget": \{\n +"by_default": true,\n +"used": 0,\n +"lifted_until": "20[^"]+"\n +\},\n +"tokens": \[\]\n.*`, "", "token", "list", "--json")
	expect(0, `the deletion budget of "oidc:alice" counts\n`, "", "token", "budget", "oidc:alice", "--lift=0s")
	expect(0, `.* -\n`, "", "token", "list") // nothing of hers counts
	const instead = `, instead of that of PLANTSTORE_OIDC_BUDGET; services without that setting do not look at it\n`
	expect(0, `the deletion budget of "oidc:alice" is 1000/1h`+instead, "", "token", "budget", "oidc:alice", "1000/1h")
	expect(0, `.* -\noidc:alice +JWT .* 1000/1h, 0 used\n`, "", "token", "list")
	const itsOwn = `"oidc:alice" has no deletion budget of its own: that of PLANTSTORE_OIDC_BUDGET counts\n`
	expect(0, itsOwn+`the deletion budget of "oidc:alice" is lifted for 5m0s\n`, "", "token", "budget", "oidc:alice", "none", "--lift=5m")
	expect(0, itsOwn, "", "token", "budget", "oidc:alice", "none")
	for _, what := range []string{"revoke", "rotate"} {
		expect(1, "", `plantstore: "oidc:alice" comes with JWTs, which the identity provider issues and ends: .*\n`, "token", what, "oidc:alice")
	}
	expect(1, "", `plantstore: there is no principal "oidc:": see 'plantstore token list'\n`, "token", "budget", "oidc:", "--lift=30m") // no JWT names nobody
	expect(0, `.* -\n`, "", "token", "list")
	_, stderr, code := command(t, "serve", "--oidc-issuer=https://i", "--oidc-audience=a", "--oidc-budget=5/8d")
	if want := `plantstore: --oidc-budget: the deletion budget 5/8d has a period of 8d, longer`; code != 2 || !strings.HasPrefix(lastLine(stderr), want) {
		t.Errorf("serve with a bad budget: exit code %d, %s; want 2, %s", code, lastLine(stderr), want)
	}
}
