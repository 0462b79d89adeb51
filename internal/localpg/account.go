//go:build unix

package localpg

import (
	"fmt"
	"os"
	"os/user"
	"strconv"
	"syscall"
)

// serverCredential returns the account that the server runs under: nil for this
// process's own, unless that is root, which PostgreSQL refuses; then postgres,
// or nobody where there is no postgres.
func serverCredential() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	account, err := user.Lookup("postgres")
	if err != nil {
		if account, err = user.Lookup("nobody"); err != nil {
			return nil, fmt.Errorf("PostgreSQL refuses to run as root, and there is no account postgres or nobody: %w", err)
		}
	}
	uid, err := strconv.ParseUint(account.Uid, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("account %s: %w", account.Username, err)
	}
	gid, err := strconv.ParseUint(account.Gid, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("account %s: %w", account.Username, err)
	}
	credential := &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	ids, err := account.GroupIds()
	if err != nil {
		return nil, fmt.Errorf("account %s: %w", account.Username, err)
	}
	for _, id := range ids {
		gid, err := strconv.ParseUint(id, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("account %s: %w", account.Username, err)
		}
		credential.Groups = append(credential.Groups, uint32(gid))
	}
	return credential, nil
}
