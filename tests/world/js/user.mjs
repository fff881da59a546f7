// One device of a person at matrix-js-sdk with its Rust crypto: a JSON command a line on stdin, a
// JSON answer or piece of news a line on stdout. It ends with its stdin. tests/world/current.py
// drives it.
import { createInterface } from "node:readline";
import * as sdk from "matrix-js-sdk";
import * as api from "matrix-js-sdk/lib/crypto-api/index.js";

// What the sdk logs must not come between the lines; its warnings go to stderr.
const write = process.stdout.write.bind(process.stdout);
process.stdout.write = () => true;
process.on("unhandledRejection", (reason) => console.error(reason)); // as a browser: it goes on

const tell = (line) => write(JSON.stringify(line) + "\n");
let client, crypto, login, recovery;

// What is seen -------------------------------------------------------------------------------

const shieldOf = async (event) => {
  const info = await crypto.getEncryptionInfoForEvent(event);
  if (!info || info.shieldColour === api.EventShieldColour.NONE) return null;
  return [api.EventShieldColour[info.shieldColour], api.EventShieldReason[info.shieldReason]];
};

const shown = async (event) => {
  const locked = event.isDecryptionFailure(); // the sdk then shows an invented m.room.message
  const relation = event.getWireContent()["m.relates_to"]; // stays outside of the ciphertext
  return {
    room: event.getRoomId(),
    event_id: event.getId(),
    sender: event.getSender(),
    type: locked ? event.getWireType() : event.getType(),
    content: locked
      ? event.getWireContent()
      : { ...(relation && { "m.relates_to": relation }), ...event.getOriginalContent() },
    encrypted: event.isEncrypted(),
    shield: event.isEncrypted() ? await shieldOf(event) : null,
    failure: event.decryptionFailureReason ?? null,
  };
};

// In the order of the timeline, although a shield takes a moment to find out.
let last = Promise.resolve();
const inTurn = (make) => {
  last = last.then(async () => tell(await make())).catch((error) => console.error(error));
};

const checks = []; // strongly held: the sdk keeps only weak references to requests
const watch = (request, incoming) => {
  const check = checks.push(request) - 1;
  let verifier = null;
  const change = () => {
    if (request.verifier && !verifier) {
      verifier = request.verifier;
      verifier.on(api.VerifierEvent.ShowSas, change);
    }
    const sas = verifier?.getShowSasCallbacks()?.sas;
    tell({
      check,
      incoming,
      phase: api.VerificationPhase[request.phase].toLowerCase(),
      code: request.cancellationCode,
      cancelled_by: request.cancellingUserId ?? null,
      user: request.otherUserId,
      device: request.otherDeviceId ?? null,
      room: request.roomId ?? null,
      transaction: request.transactionId,
      emojis: sas?.emoji ?? null,
      decimals: sas?.decimal ?? null,
    });
  };
  request.on(api.VerificationRequestEvent.Change, change);
  change();
  return check;
};

const listen = () => {
  client.on(sdk.RoomEvent.Timeline, (event, room, toStart) => {
    if (!toStart) inTurn(() => shown(event));
  });
  client.on(sdk.MatrixEventEvent.Decrypted, (event) => inTurn(() => shown(event)));
  client.on(sdk.RoomStateEvent.Members, (event, state, member) =>
    inTurn(() => ({ member: [state.roomId, member.userId, member.membership] })),
  );
  client.on(api.CryptoEvent.VerificationRequestReceived, (request) => watch(request, true));
  for (const name of [
    sdk.ClientEvent.Sync,
    api.CryptoEvent.DevicesUpdated,
    api.CryptoEvent.UserTrustStatusChanged,
    api.CryptoEvent.KeysChanged,
  ])
    client.on(name, () => inTurn(() => ({ changed: name })));
};

// What is done -------------------------------------------------------------------------------

const isolation = (strict) =>
  crypto.setDeviceIsolationMode(
    strict
      ? new api.OnlySignedDevicesIsolationMode()
      : new api.AllDevicesIsolationMode(false),
  );

const approve = async (upload) => {
  try {
    return await upload(null);
  } catch (error) {
    if (error.httpStatus !== 401 || !error.data?.session) throw error;
    return upload({
      type: "m.login.password",
      identifier: { type: "m.id.user", user: login.user_id },
      password: login.password,
      session: error.data.session,
    });
  }
};

const act = {
  accept: (request) => request.accept(),
  start: (request) => request.startVerification("m.sas.v1"),
  look: (request) => void request.verifier.verify().catch(() => {}), // the request tells its end
  confirm: (request) => request.verifier.getShowSasCallbacks().confirm(),
  mismatch: (request) => request.verifier.getShowSasCallbacks().mismatch(),
  cancel: (request) => request.cancel(),
};

const commands = {
  async begin(given) {
    login = given;
    client = sdk.createClient({
      baseUrl: given.url,
      userId: given.user_id,
      deviceId: given.device_id,
      accessToken: given.access_token,
      verificationMethods: ["m.sas.v1"],
      cryptoCallbacks: {
        getSecretStorageKey: async ({ keys }) => [Object.keys(keys)[0], recovery],
      },
    });
    await client.initRustCrypto({ useIndexedDB: false });
    crypto = client.getCrypto();
    isolation(given.strict);
    listen();
    const synced = new Promise((resolve) =>
      client.on(sdk.ClientEvent.Sync, (state) => state === "PREPARED" && resolve()),
    );
    // Long timelines, so that there is never a gap; an echo is shown when the homeserver has it.
    await client.startClient({
      initialSyncLimit: 5000,
      pendingEventOrdering: sdk.PendingEventOrdering.Detached,
    });
    await synced;
  },
  isolate: ({ strict }) => isolation(strict),
  refuse_unverified: ({ on }) => void (crypto.globalBlacklistUnverifiedDevices = on),
  identity: ({ anew }) =>
    crypto.bootstrapCrossSigning({
      setupNewCrossSigning: anew,
      authUploadDeviceSigningKeys: approve,
    }),
  async recover({ key }) {
    recovery = api.decodeRecoveryKey(key);
    await crypto.bootstrapCrossSigning({});
  },
  crypto: ({ name, words }) => crypto[name](...words),
  async request({ method, path, body }) {
    const answer = await fetch(login.url + path, {
      method,
      headers: { Authorization: `Bearer ${login.access_token}`, "Content-Type": "application/json" },
      body: body === null ? undefined : JSON.stringify(body),
    });
    return [answer.status, await answer.json()];
  },
  knows: async ({ room, encrypted }) => {
    const known = client.getRoom(room);
    return known !== null && (!encrypted || (await crypto.isEncryptionEnabledInRoom(room)));
  },
  send: async ({ room, kind, content }) => (await client.sendEvent(room, kind, content)).event_id,
  rings: ({ room }) =>
    client
      .getRoom(room)
      .getLiveTimeline()
      .getEvents()
      .filter((event) => event.getSender() !== login.user_id)
      .filter((event) => client.getPushActionsForEvent(event, true)?.notify)
      .map((event) => event.getId()),
  shield: ({ room, event_id }) => shieldOf(client.getRoom(room).findEventById(event_id)),
  async history({ room }) {
    const found = [];
    const read = client.getEventMapper({ decrypt: false, preventReEmit: true });
    for (let from = null; ; ) {
      const page = await client.createMessagesRequest(room, from, 500, sdk.Direction.Backward);
      for (const raw of page.chunk) {
        const event = read(raw);
        await client.decryptEventIfNeeded(event);
        found.unshift(await shown(event));
      }
      if (!(from = page.end) || !page.chunk.length) return found;
    }
  },
  async verify({ user, room, device }) {
    await crypto.userHasCrossSigningKeys(user, true); // asks for what it has not heard of
    const request = room
      ? await crypto.requestVerificationDM(user, room)
      : await crypto.requestDeviceVerification(user, device);
    return watch(request, false);
  },
  act: async ({ check, what }) => void (await act[what](checks[check])),
};

createInterface({ input: process.stdin })
  .on("line", async (line) => {
    const { id, do: name, ...given } = JSON.parse(line);
    try {
      tell({ id, ok: (await commands[name](given)) ?? null });
    } catch (error) {
      tell({ id, error: String(error?.stack ?? error).slice(0, 2000) });
    }
  })
  .on("close", () => process.exit(0));
