package org.apache.james.queue.rabbitmq;

import com.fasterxml.jackson.databind.ObjectMapper;
import com.google.common.collect.ImmutableList;
import com.google.common.collect.ImmutableMap;
import com.google.common.hash.Hashing;
import com.google.common.io.ByteStreams;

import org.apache.james.core.MailAddress;
import org.apache.james.lifecycle.api.LifecycleUtil;
import org.apache.james.mailbox.model.MessageIdDto;
import org.apache.james.queue.api.MailQueue.MailQueueItem;
import org.apache.james.queue.api.MailQueue.MailQueueItem.CompletionStatus;
import org.apache.james.queue.api.ManageableMailQueue.MailQueueIterator;
import org.apache.james.queue.api.ManageableMailQueue.Type;
import org.apache.james.server.core.MailImpl;
import org.apache.james.server.core.MimeMessageInputStreamSource;
import org.apache.james.server.core.MimeMessageWrapper;
import org.apache.mailet.ArbitrarySerializable;
import org.apache.mailet.Attribute;
import org.apache.mailet.AttributeName;
import org.apache.mailet.AttributeValue;
import org.apache.mailet.Mail;
import org.apache.mailet.PerRecipientHeaders;

import reactor.core.Disposable;
import reactor.core.publisher.Flux;
import reactor.core.publisher.Mono;
import reactor.core.scheduler.Schedulers;

import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.MalformedURLException;
import java.net.URL;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.ZonedDateTime;
import java.util.ArrayList;
import java.util.Date;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Random;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentLinkedQueue;

/**
 * Does with the mails of James' queue what lines on standard input ask for, each answered with a line
 * of JSON: `open NAME PREFETCH`, `register`, `fill FIRST COUNT MOST LEAST`, `list`, `remove TYPE VALUE`,
 * `take COUNT STATUS`, `consume MILLISECONDS`, `consumed`, `drop`.
 */
public final class Mails {
    private static final int IN_FLIGHT = 16;
    private static final int RETRIES = 5;

    private final Wiring james;
    private final ConcurrentLinkedQueue<String> consumed = new ConcurrentLinkedQueue<>();
    private RabbitMQMailQueue queue;
    private String name;
    private Disposable consumer;

    private Mails(Wiring james) {
        this.james = james;
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);
        ObjectMapper json = new ObjectMapper();
        BufferedReader lines =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        try (Wiring james = new Wiring(System.getenv())) {
            Mails mails = new Mails(james);
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                Object answer;
                try {
                    answer = Map.of("answer", mails.answer(line.split(" ")));
                } catch (Exception error) {
                    error.printStackTrace();
                    answer = Map.of("error", error.toString());
                }
                answers.println(json.writeValueAsString(answer));
                answers.flush();
            }
        }
        System.exit(0);
    }

    private Object answer(String[] words) throws Exception {
        switch (words[0]) {
            case "open":
                name = words[1];
                queue = james.open(name, Integer.parseInt(words[2]));
                return 1;
            case "register":
                james.register();
                return 1;
            case "drop":
                james.drop(name);
                return 1;
            case "fill":
                return fill(
                        number(words[1]),
                        number(words[2]),
                        number(words[3]),
                        words.length > 4 ? number(words[4]) : 0);
            case "list":
                return list();
            case "remove":
                return queue.remove(Type.valueOf(words[1]), words[2]);
            case "take":
                return take(number(words[1]), CompletionStatus.valueOf(words[2]));
            case "consume":
                return consume(number(words[1]));
            case "consumed":
                return new ArrayList<>(consumed);
            case "stop":
                consumer.dispose();
                return 1;
            default:
                throw new IllegalArgumentException("no such command: " + words[0]);
        }
    }

    private static int number(String word) {
        return Integer.parseInt(word);
    }

    private int fill(int first, int count, int most, int least) {
        Flux.range(first, count)
                .flatMap(
                        each ->
                                Mono.defer(
                                        () -> {
                                            MailImpl mail = mail(each, most, least);
                                            return Mono.from(queue.enqueueReactive(mail))
                                                    .doFinally(x -> LifecycleUtil.dispose(mail));
                                        })
                                        .retry(RETRIES), // he gives a publish 10 s
                        IN_FLIGHT)
                .then()
                .block();
        return count;
    }

    /** Every mail has other fields: recipients, headers of one of them, attributes of each type. */
    private static MailImpl mail(int number, int most, int least) {
        try {
            int size = least + new Random(number).nextInt(most - least + 1);
            MailImpl.Builder builder =
                    MailImpl.builder()
                            .name("mail-" + number)
                            .state(number % 3 == 0 ? "transport" : "root")
                            .addRecipient("first" + number + "@example.net")
                            .remoteHost("client.example.org")
                            .remoteAddr("192.0.2." + number % 250)
                            .lastUpdated(new Date(1_700_000_000_000L + number));
            if (number % 4 != 0) {
                builder.sender("sender" + number % 25 + "@example.org");
            }
            for (int more = 0; more < number % 5; more++) {
                builder.addRecipient("more" + more + "@example.com");
            }
            if (number % 6 == 0) {
                builder.errorMessage("451 näh, later");
            }
            if (number % 2 == 0) {
                builder.addHeaderForRecipient(
                        PerRecipientHeaders.Header.builder()
                                .name("X-Only")
                                .value("value " + number)
                                .build(),
                        new MailAddress("first" + number + "@example.net"));
            }
            MailImpl mail = builder.build();
            values(number)
                    .forEach(
                            (key, value) ->
                                    mail.setAttribute(new Attribute(AttributeName.of(key), value)));
            mail.setMessageNoCopy(
                    new MimeMessageWrapper(
                            MimeMessageInputStreamSource.create(
                                    "mail-" + number,
                                    new ByteArrayInputStream(content(number, size)))));
            return mail;
        } catch (javax.mail.MessagingException | MalformedURLException error) {
            throw new IllegalStateException(error);
        }
    }

    /** A value of each type that he stores. */
    private static Map<String, AttributeValue<?>> values(int number) throws MalformedURLException {
        AttributeValue<String> text = AttributeValue.of("tëxt " + number);
        Map<String, AttributeValue<?>> found = new TreeMap<>();
        found.put("boolean", AttributeValue.of(number % 2 == 0));
        found.put("text", text);
        found.put("int", AttributeValue.of(number));
        found.put("long", AttributeValue.of(1L << 40));
        found.put("float", AttributeValue.of(1.5f));
        found.put("double", AttributeValue.of(2.5));
        found.put("date", AttributeValue.of(ZonedDateTime.parse("2026-01-01T10:00:00Z")));
        found.put("id", AttributeValue.of(new MessageIdDto("id-" + number)));
        found.put("own", AttributeValue.of(new Own(number)));
        found.put("url", AttributeValue.of(new URL("http://example.org/" + number)));
        found.put("bytes", AttributeValue.of(new byte[] {0, (byte) number, -1}));
        found.put("list", AttributeValue.of(ImmutableList.of(text)));
        found.put("map", AttributeValue.of(ImmutableMap.of("key", text)));
        found.put("optional", AttributeValue.of(Optional.of(text)));
        return found;
    }

    /** A type of a mailet's own. */
    public record Own(int number) implements ArbitrarySerializable<Own> {
        @Override
        public Serializable<Own> serialize() {
            return new Serializable<>(AttributeValue.of(number), Reader.class);
        }

        /** Reads it again. */
        public static final class Reader implements Deserializer<Own> {
            @Override
            public Optional<Own> deserialize(Serializable<Own> stored) {
                return Optional.of(new Own((Integer) stored.getValue().value()));
            }
        }
    }

    /** Octets of every value, behind a header. */
    private static byte[] content(int number, int size) {
        byte[] body = new byte[size];
        new Random(number).nextBytes(body);
        byte[] header =
                ("Subject: mail " + number + "\r\nX-Folded: one\r\n two\r\n\r\n")
                        .getBytes(StandardCharsets.US_ASCII);
        byte[] whole = new byte[header.length + size];
        System.arraycopy(header, 0, whole, 0, header.length);
        System.arraycopy(body, 0, whole, header.length, size);
        return whole;
    }

    private List<Map<String, Object>> list() throws Exception {
        List<Map<String, Object>> found = new ArrayList<>();
        MailQueueIterator mails = queue.browse();
        try {
            while (mails.hasNext()) {
                Mail mail = mails.next().getMail();
                found.add(described(mail));
                LifecycleUtil.dispose(mail);
            }
        } finally {
            mails.close();
        }
        return found;
    }

    private static Map<String, Object> described(Mail mail) throws Exception {
        MimeMessageWrapper message = (MimeMessageWrapper) mail.getMessage();
        byte[] content;
        try (InputStream stream = message.getMessageInputStream()) {
            content = ByteStreams.toByteArray(stream);
        }
        Map<String, Object> found = new TreeMap<>();
        found.put("name", mail.getName());
        found.put("sender", mail.getMaybeSender().asOptional().map(MailAddress::asString).orElse(null));
        found.put("recipients", mail.getRecipients().stream().map(MailAddress::asString).toList());
        found.put("state", mail.getState());
        found.put("error", mail.getErrorMessage());
        found.put("updated", mail.getLastUpdated().getTime());
        found.put("host", mail.getRemoteHost());
        found.put("address", mail.getRemoteAddr());
        found.put("sha256", Hashing.sha256().hashBytes(content).toString());
        Map<String, String> attributes = new TreeMap<>();
        mail.attributes()
                .forEach(
                        each ->
                                each.getValue()
                                        .toJson()
                                        .ifPresent(
                                                json ->
                                                        attributes.put(
                                                                each.getName().asString(),
                                                                json.toString())));
        found.put("attributes", attributes);
        List<List<String>> headers = new ArrayList<>();
        mail.getPerRecipientSpecificHeaders()
                .getHeadersByRecipient()
                .entries()
                .forEach(
                        each ->
                                headers.add(
                                        List.of(
                                                each.getKey().asString(),
                                                each.getValue().getName(),
                                                each.getValue().getValue())));
        found.put("headers", headers);
        return found;
    }

    /** Ends mails, and returns their names. */
    private List<String> take(int count, CompletionStatus status) {
        return Flux.from(queue.deQueue())
                .concatMap(
                        item ->
                                Mono.fromCallable(() -> ended(item, status))
                                        .subscribeOn(Schedulers.boundedElastic()))
                .take(count)
                .collectList()
                .block();
    }

    /** Consumes until the process ends, as James' spooler does; a mail takes so long. */
    private int consume(int milliseconds) {
        consumer =
                Flux.from(queue.deQueue())
                        .flatMap(
                                item ->
                                        Mono.delay(Duration.ofMillis(milliseconds))
                                                .publishOn(Schedulers.boundedElastic())
                                                .map(
                                                        x -> {
                                                            String ended =
                                                                    ended(
                                                                            item,
                                                                            CompletionStatus
                                                                                    .SUCCESS);
                                                            consumed.add(ended);
                                                            return ended;
                                                        }),
                                IN_FLIGHT)
                        .subscribe();
        return 1;
    }

    private static String ended(MailQueueItem item, CompletionStatus status) {
        try {
            String name = item.getMail().getName();
            item.done(status);
            return name;
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }
}
