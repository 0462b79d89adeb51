package doctor

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// tokens finds tokens that are forgotten or soon a surprise: of each principal the
// newest, which others are to give way to. Names of principals have no character that
// SQL or a shell would take for more.
func (e *examination) tokens(ctx context.Context, tx pgx.Tx) ([]Finding, error) {
	rows, err := tx.Query(ctx, `
		WITH newest AS (
			SELECT DISTINCT ON (t.principal) t.*, t.last_used_at IS NULL AND t.created_at < now() - make_interval(secs => $2) AS unused,
				t.expires_at < now() + make_interval(secs => $1) AS ends,
				EXISTS (SELECT FROM public.api_tokens o WHERE o.principal = t.principal AND o.id <> t.id
					AND o.revoked_at IS NULL AND (o.expires_at IS NULL OR o.expires_at > now())) AS has_old
			FROM public.api_tokens t WHERE t.revoked_at IS NULL
			ORDER BY t.principal, t.created_at DESC
		)
		SELECT CASE WHEN unused AND has_old THEN format('the newest token of %s was never used since %s: its client has not changed over', principal, to_char(created_at, 'YYYY-MM-DD'))
				WHEN unused THEN format('the token of %s was never used since %s', principal, to_char(created_at, 'YYYY-MM-DD'))
				WHEN ends THEN format('the token of %s expires on %s', principal, to_char(expires_at, 'YYYY-MM-DD'))
				ELSE format('the token of %s never expires', principal) END,
			CASE WHEN unused AND NOT has_old THEN format('plantstore token revoke %s', principal)
				ELSE format('plantstore token rotate %s', principal) END
		FROM newest WHERE (expires_at IS NULL OR expires_at > now()) AND (unused OR ends OR expires_at IS NULL)
		ORDER BY principal`, e.Limits.TokenExpiry.Seconds(), e.Limits.TokenUnused.Seconds())
	if err != nil {
		return nil, err
	}
	found, err := collect(rows, Warning)
	return orFine(found, "all in use and with an end"), err
}
