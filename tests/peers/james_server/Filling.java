package dev.postroad.tests;

import java.time.Duration;
import java.util.Arrays;
import java.util.stream.Collectors;
import javax.inject.Inject;
import org.apache.james.core.MailAddress;
import org.apache.james.core.MaybeSender;
import org.apache.james.core.builder.MimeMessageBuilder;
import org.apache.james.queue.api.MailQueue;
import org.apache.james.queue.api.MailQueueFactory;
import org.apache.james.queue.api.MailQueueName;
import org.apache.james.server.core.MailImpl;
import org.apache.james.webadmin.Routes;
import spark.Request;
import spark.Service;

/**
 * Queues mail for a test: PUT /filling/QUEUE?name=&sender=&recipients=A,B&delay=SECONDS; without a
 * name, it makes the queue.
 */
public class Filling implements Routes {
    /**
     * A queue in memory is cleared when its last reference is closed, and WebAdmin closes one or two
     * with each request.
     */
    private static final int REFERENCES = 10000;

    private final MailQueueFactory<? extends MailQueue> queues;

    @Inject
    Filling(MailQueueFactory<? extends MailQueue> queues) {
        this.queues = queues;
    }

    @Override
    public String getBasePath() {
        return "/filling";
    }

    @Override
    public void define(Service service) {
        service.put("/filling/:queue", (request, response) -> fill(request));
    }

    private String fill(Request request) throws Exception {
        MailQueueName called = MailQueueName.of(request.params("queue"));
        String name = request.queryParams("name");
        if (name == null) {
            for (int each = 0; each < REFERENCES; each++) {
                queues.createQueue(called);
            }
            return "";
        }
        MailQueue queue = queues.createQueue(called);
        MailImpl mail = MailImpl.builder()
            .name(name)
            .sender(MaybeSender.getMailSender(request.queryParams("sender")))
            .addRecipients(Arrays.stream(request.queryParams("recipients").split(","))
                .map(Filling::address).collect(Collectors.toList()))
            .mimeMessage(MimeMessageBuilder.mimeMessageBuilder().setSubject("a test").setText("text"))
            .build();
        String delay = request.queryParams("delay");
        if (delay == null) {
            queue.enQueue(mail);
        } else {
            queue.enQueue(mail, Duration.ofSeconds(Long.parseLong(delay)));
        }
        return "";
    }

    private static MailAddress address(String text) {
        try {
            return new MailAddress(text);
        } catch (Exception e) {
            throw new IllegalArgumentException(e);
        }
    }
}
