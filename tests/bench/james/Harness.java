package org.apache.james.queue.rabbitmq;

import com.fasterxml.jackson.databind.ObjectMapper;
import com.google.common.io.ByteStreams;

import org.apache.james.lifecycle.api.LifecycleUtil;
import org.apache.james.queue.api.MailQueue.MailQueueItem;
import org.apache.james.queue.api.MailQueue.MailQueueItem.CompletionStatus;
import org.apache.james.queue.api.ManageableMailQueue.MailQueueIterator;
import org.apache.james.server.core.MailImpl;
import org.apache.james.server.core.MimeMessageInputStreamSource;
import org.apache.james.server.core.MimeMessageWrapper;

import reactor.core.publisher.Flux;
import reactor.core.publisher.Mono;
import reactor.core.scheduler.Scheduler;
import reactor.core.scheduler.Schedulers;

import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.Callable;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * Does with James' queue what lines on standard input ask for, and answers each with a line of JSON.
 *
 * <p>Mails come in and leave as in a James server: a source of bytes wrapped as a message, enqueued
 * reactively with as many in flight as asked for; taken out by a flatMap on a bounded pool of
 * threads, with as many delivered to this consumer at most. A worker reads the whole message, which
 * James has fetched by then, and says that it is done. Latencies are of the whole enqueueing, and of
 * leaving from the moment James hands a mail out: they hold no fetching of its bytes.
 */
public final class Harness {
    private static final int SHARE_OF_LINE = 76;

    private final Wiring james;
    private RabbitMQMailQueue queue;
    private String name;
    private long[] latencies;

    private Harness(Wiring james) {
        this.james = james;
    }

    public static void main(String[] arguments) throws IOException {
        PrintStream answers = System.out;
        System.setOut(System.err); // a library's output must not be taken for an answer
        ObjectMapper json = new ObjectMapper();
        BufferedReader lines =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        try (Wiring james = new Wiring(System.getenv())) {
            Harness harness = new Harness(james);
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                answers.println(json.writeValueAsString(harness.answer(line.split(" "))));
                answers.flush();
            }
        }
        System.exit(0); // threads of the drivers would keep it alive
    }

    private Map<String, Object> answer(String[] words) {
        latencies = new long[0];
        try {
            Callable<Long> work = command(words);
            long began = System.nanoTime();
            long count = work.call();
            double seconds = (System.nanoTime() - began) / 1e9;
            return Map.of("count", count, "seconds", seconds, "nanoseconds", latencies);
        } catch (Exception error) {
            error.printStackTrace();
            return Map.of("error", error.toString());
        }
    }

    private Callable<Long> command(String[] words) {
        return switch (words[0]) {
            case "open" -> () -> open(words[1], number(words[2]));
            case "drop" -> this::drop;
            case "enqueue" -> enqueue(number(words[1]), number(words[2]), number(words[3]));
            case "dequeue" -> dequeue(number(words[1]), number(words[2]), number(words[3]));
            case "size" -> () -> queue.getSize();
            case "browse" -> () -> browse(words.length > 1 ? number(words[1]) : Long.MAX_VALUE);
            case "clear" -> () -> queue.clear();
            default -> throw new IllegalArgumentException("no such command: " + words[0]);
        };
    }

    private static int number(String word) {
        return Integer.parseInt(word);
    }

    private long open(String newName, int prefetch) {
        name = newName;
        queue = james.open(name, prefetch);
        return 1;
    }

    private long drop() {
        james.drop(name);
        return 1;
    }

    private Callable<Long> enqueue(int mails, int size, int inFlight) {
        byte[] content = content(size);
        latencies = new long[mails];
        return () ->
                Flux.range(0, mails)
                        .flatMap(number -> enter(content, number), inFlight)
                        .then(Mono.just((long) mails))
                        .block();
    }

    private Mono<Void> enter(byte[] content, int number) {
        return Mono.defer(
                () -> {
                    long began = System.nanoTime();
                    MailImpl mail = mail(content, "measured-" + number);
                    return Mono.from(queue.enqueueReactive(mail))
                            .doFinally(
                                    signal -> {
                                        latencies[number] = System.nanoTime() - began;
                                        LifecycleUtil.dispose(mail);
                                    });
                });
    }

    /** A mail's name decides about its bucket, so each has its own. */
    private static MailImpl mail(byte[] content, String name) {
        try {
            MailImpl mail =
                    MailImpl.builder()
                            .name(name)
                            .sender("a@example.org")
                            .addRecipient("b@example.net")
                            .build();
            mail.setMessageNoCopy(
                    new MimeMessageWrapper(
                            MimeMessageInputStreamSource.create(
                                    name, new ByteArrayInputStream(content))));
            return mail;
        } catch (javax.mail.MessagingException error) {
            throw new IllegalStateException(error);
        }
    }

    private static byte[] content(int size) {
        StringBuilder text = new StringBuilder("Subject: measured\r\n\r\n");
        new Random(size)
                .ints('a', 'z')
                .limit(size)
                .forEach(
                        letter -> {
                            text.append((char) letter);
                            if (text.length() % SHARE_OF_LINE == 0) {
                                text.append("\r\n");
                            }
                        });
        text.setLength(size);
        return text.toString().getBytes(StandardCharsets.US_ASCII);
    }

    private Callable<Long> dequeue(int mails, int size, int inFlight) {
        latencies = new long[mails];
        AtomicInteger numbers = new AtomicInteger();
        Scheduler threads = Schedulers.newBoundedElastic(inFlight + 1, mails + 1, "worker");
        return () -> {
            try {
                return Flux.from(queue.deQueue())
                        .flatMap(
                                item ->
                                        Mono.fromCallable(
                                                        () ->
                                                                leave(
                                                                        item,
                                                                        size,
                                                                        numbers.getAndIncrement()))
                                                .subscribeOn(threads),
                                inFlight)
                        .take(mails) // only now: a cancelled consumer cannot ack
                        .count()
                        .block();
            } finally {
                threads.dispose();
            }
        };
    }

    private int leave(MailQueueItem item, int size, int number) throws Exception {
        long began = System.nanoTime();
        MimeMessageWrapper message = (MimeMessageWrapper) item.getMail().getMessage();
        try (InputStream content = message.getMessageInputStream()) {
            long found = ByteStreams.exhaust(content);
            if (found != size) {
                throw new IllegalStateException("a mail of " + found + " bytes");
            }
        }
        item.done(CompletionStatus.SUCCESS);
        latencies[number] = System.nanoTime() - began;
        return number;
    }

    private long browse(long most) throws Exception {
        long count = 0;
        MailQueueIterator found = queue.browse();
        try {
            while (count < most && found.hasNext()) {
                LifecycleUtil.dispose(found.next().getMail());
                count++;
            }
        } finally {
            found.close();
        }
        return count;
    }
}
