// An OpenID provider for tests: `node provider.mjs FILE`, a JSON file with url, port, key, cert,
// clients, groups (of each user), and seconds (for which a token is good).
import fs from 'node:fs';
import https from 'node:https';
import Provider from 'oidc-provider';

const given = JSON.parse(fs.readFileSync(process.argv[2], 'utf8'));
const provider = new Provider(given.url, {
  clients: given.clients,
  claims: { openid: ['sub'], groups: ['groups'] },
  conformIdTokenClaims: false,
  cookies: { keys: ['of a test'] },
  findAccount: (_, id) => ({
    accountId: id,
    claims: () => ({ sub: id, groups: given.groups[id] ?? [] }),
  }),
  pkce: { required: () => true },
  ttl: { IdToken: given.seconds, AccessToken: 60, AuthorizationCode: 60, Grant: 600, Interaction: 600, Session: 600 },
});
const tls = { key: fs.readFileSync(given.key), cert: fs.readFileSync(given.cert) };
https.createServer(tls, provider.callback()).listen(given.port, '127.0.0.1');
